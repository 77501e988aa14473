import asyncio

folder = inputs["folder"]


async def entry(path):
    text = (await core.fs_readText(path=path))["text"]
    headings = [line[2:].strip() for line in text.splitlines() if line.startswith("# ")]
    return {"path": path, "title": headings[0] if headings else path, "words": len(text.split())}


listed = await core.fs_listDir(path=folder)
names = [each["name"] for each in listed["entries"] if each["name"].endswith(".md") and each["name"] != "INDEX.md"]
notes = await asyncio.gather(*[entry(folder + "/" + name) for name in sorted(names)])
lines = ["- [" + note["title"] + "](" + note["path"] + "), " + str(note["words"]) + " words" for note in notes]
await core.fs_writeText(path=folder + "/INDEX.md", text="\n".join(lines) + "\n", overwrite=True)
{"notes": len(notes), "words": sum(note["words"] for note in notes)}
