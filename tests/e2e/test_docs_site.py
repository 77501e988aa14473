"""A site with the settings and the theme of docs/, opened from a disk: it asks no network, and its search works."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / ".ci" / "docs_site"
PAGES = {"index.md": "# Start\n\nSee [the other](other.md).\n", "other.md": "# Other\n\nHow to restore a marmalade.\n"}


async def test_search_works_from_a_disk_without_a_network(tmp_path: Path, chromium: str) -> None:
    from playwright.async_api import async_playwright

    (tmp_path / "pages").mkdir()
    for name, text in PAGES.items():
        (tmp_path / "pages" / name).write_text(text)
    settings = (SOURCES / "zensical.toml").read_text()
    (tmp_path / "zensical.toml").write_text(re.sub(r"^nav = \[.*?^\]", "", settings, flags=re.MULTILINE | re.DOTALL))
    shutil.copytree(SOURCES / "theme", tmp_path / "theme")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True, capture_output=True)

    asked: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        await page.goto((tmp_path / "site" / "index.html").as_uri())
        await page.wait_for_selector("iframe", state="attached")  # the search's worker
        await page.keyboard.press("Control+k")
        await page.keyboard.type("marmalade")
        await page.get_by_text("restore a marmalade").wait_for()
        await browser.close()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
