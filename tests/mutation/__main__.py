"""`make mutation`: change the server a little, many times, and see whether the tests notice.

A sample of all mutants of the files that decide (guards, policy, runtime, budget, the job machine, the audit log) is
taken by a seed that is printed. Each runs against a copy of the server, with the tests that run the changed line, the
nearest first (covering.py). It prints how many were noticed and lists those that survived; one that no test could
notice belongs into survivors.yaml with the reason, and is not sampled again.

By their documentation mutmut 3 needs one run of all tests before anything is sampled, and cosmic-ray runs all given
tests for each mutant and does not sample; neither was tried on this tree.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

from tests.mutation.covering import PACKAGE, ROOT, BrokenTestsError, CoverageMap, environment, measure
from tests.mutation.mutants import Key, Mutant, mutants_of

SCOPE = ("guards/*.py", "policy/*.py", "runtime/**/*.py", "budget/*.py", "domain/job.py", "stores/audit/*.py")
SURVIVORS = Path(__file__).with_name("survivors.yaml")
WITHIN_S = 60
"""For one test, of which none takes a tenth of that: a mutant that makes it hang is noticed too."""
WHOLE_S = 900
"""For all tests of a mutant: some make the loop hang in a way that no test's own limit ends."""
LIKELIEST = 40


@dataclass(frozen=True, slots=True)
class Tried:
    mutant: Mutant
    noticed_by: str
    """The first test that fails; empty: it survived."""
    took_s: float


def main() -> int:
    options = _options()
    files = [
        path for path in _files() if any(part in str(path.relative_to(PACKAGE)) for part in options.only.split(","))
    ]
    every = [mutant for path in files for mutant in mutants_of(str(path.relative_to(PACKAGE)), path.read_text())]
    explained = known_survivors()
    open_ones = [mutant for mutant in every if mutant.key not in explained]
    for key in explained.keys() - {mutant.key for mutant in every} if not options.only else ():
        print(f"{SURVIVORS.name}: no such mutant any more, take its entry out: {' | '.join(key)}")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    sample = random.Random(seed).sample(open_ones, min(options.mutants, len(open_ones)))
    print(f"seed {seed}: {len(sample)} of {len(open_ones)} mutants of {len(files)} files", flush=True)
    if not sample:
        return 0
    map_file = options.map or Path(tempfile.mkdtemp(prefix="toolhub-mutation-")) / "coverage"
    if not map_file.exists():
        print(f"tests run once without a change, to see what each of them runs: {map_file}", flush=True)
        try:
            measure(map_file.absolute())
        except BrokenTestsError as error:
            print(f"these tests fail without any change:\n{error}", file=sys.stderr)
            return 2
    tried = list(_try_all(sample, CoverageMap(map_file), options.jobs))
    survived = [each.mutant for each in tried if not each.noticed_by]
    print(f"\n{len(tried) - len(survived)} of {len(tried)} noticed ({1 - len(survived) / max(1, len(tried)):.1%})")
    if survived:
        print("survivors; write the test that notices each, or into survivors.yaml why none can:")
        print(yaml.safe_dump([_entry(mutant) for mutant in survived], sort_keys=False, width=110))
    return 0


def known_survivors() -> dict[Key, str]:
    """The reasons in survivors.yaml, by the keys of their mutants."""
    entries = yaml.safe_load(SURVIVORS.read_text(encoding="utf-8")) or []
    return {(it["file"], it["function"], it["code"], it["before"], it["after"]): it["reason"] for it in entries}


def _entry(mutant: Mutant) -> dict[str, str]:
    named = dict(zip(("file", "function", "code", "before", "after"), mutant.key, strict=True))
    return {**named, "reason": ""}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutation")
    parser.add_argument("mutants", nargs="?", type=int, default=400, help="how many to sample")
    parser.add_argument("--seed", type=int, help="of an earlier run, to take the same sample")
    parser.add_argument("--only", default="", help="files whose path contains one of these, between commas")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried beside one another")
    parser.add_argument("--map", type=Path, help="which tests run which line, kept by an earlier run of the same tree")
    return parser.parse_args()


def _files() -> list[Path]:
    found = []
    for pattern in SCOPE:
        matching = sorted(PACKAGE.glob(pattern))
        assert matching, f"no file fits {pattern}: correct SCOPE"
        found += matching
    return found


def _try_all(sample: Collection[Mutant], covered: CoverageMap, jobs: int) -> Iterator[Tried]:
    with tempfile.TemporaryDirectory(prefix="toolhub-mutation-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = Path(folder) / str(number)
            shutil.copytree(PACKAGE, copy / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
            copies.put(copy)

        def tried(mutant: Mutant) -> Tried:
            copy = copies.get()
            file = copy / PACKAGE.name / mutant.file
            kept, start_s = file.read_text(), time.monotonic()
            try:
                file.write_text(mutant.source)
                return Tried(
                    mutant, _noticed(covered.tests_of(mutant.file, mutant.line), copy), time.monotonic() - start_s
                )
            finally:
                file.write_text(kept)
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            for number, each in enumerate(pool.map(tried, sample), 1):
                it = each.mutant
                verdict = "noticed" if each.noticed_by else "SURVIVED"
                print(
                    f"{number:4} {verdict:9}{each.took_s:5.0f} s  {it.file}:{it.line} {it.operator}: "
                    f"{it.before.splitlines()[0][:70]} -> {it.after.splitlines()[0][:70]}  {each.noticed_by[-90:]}",
                    flush=True,
                )
                yield each


def _noticed(tests: Sequence[str], copy: Path) -> str:
    # The likeliest first and by themselves: of most mutants the others need not even be collected.
    for some in (tests[:LIKELIEST], tests[LIKELIEST:]):
        if not some:
            continue
        arguments = copy / "arguments.txt"
        arguments.write_text("\n".join(some))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        command += ["-o", f"timeout={WITHIN_S}", "--tb=no", f"@{arguments}"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment(copy), check=False, capture_output=True, text=True, timeout=WHOLE_S
            )
        except subprocess.TimeoutExpired:
            return "one that hangs"
        if done.returncode == 0:
            continue
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        if failed is None:
            # Nothing could be imported, or no test has one of these names: only the former is the mutant's doing.
            subprocess.run([*command, "--collect-only"], cwd=ROOT, env=environment(), check=True, capture_output=True)
        return failed.group(1) if failed else "what imports it"
    return ""


if __name__ == "__main__":
    sys.exit(main())
