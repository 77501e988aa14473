"""Totals of one column by the values of another: JSON on standard input, JSON on standard output, a file beside it."""

import csv
import io
import json
import os
import sys
from pathlib import Path

given = json.load(sys.stdin)
totals: dict[str, float] = {}
skipped = 0
for row in csv.DictReader(io.StringIO(given["csv"])):
    try:
        totals[row[given["by"]]] = totals.get(row[given["by"]], 0.0) + float(row[given["sum"]])
    except KeyError as missing:
        sys.exit(f"the table has no column {missing}")
    except (TypeError, ValueError):
        skipped += 1
with (Path(os.environ["TOOLHUB_OUTPUT"]) / "totals.csv").open("w", newline="") as file:
    csv.writer(file).writerows([(given["by"], given["sum"]), *sorted(totals.items())])
json.dump({"totals": totals, "skipped": skipped}, sys.stdout)
