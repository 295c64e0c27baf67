#!/usr/bin/env python3
"""tests/golden/statistics.json: SciPy's figures of the tests in scripts/qeng/report/statistics.lua (made with SciPy 1.17.1).

    python3 tests/golden/statistics_golden.py
"""
import json
import pathlib
import random

from scipy import stats

draw = random.Random(1)
tails = [[x, k, stats.chi2.sf(x, k)] for k in (1, 2, 3, 6, 7, 40) for x in (0.01, 0.5, 1, 3.84, 7, 20, 60, 150)]
wilcoxon = []
for n, digits, shift in ((5, 9, 0), (12, 9, 0.4), (30, 9, 0.2), (50, 9, 0.1), (51, 9, 0.1), (30, 1, 0.2), (200, 1, 0.05)):
    values = [round(draw.gauss(shift, 1), digits) for _ in range(n)]
    found = stats.wilcoxon(values, method="exact" if n <= 50 and digits == 9 else "approx")
    wilcoxon.append({"values": values, "statistic": found.statistic, "probability": found.pvalue})
friedman = []
for blocks, count, digits in ((4, 3, 9), (30, 7, 9), (30, 5, 0)):
    rows = [[round(draw.gauss(t / 5, 1), digits) for t in range(count)] for _ in range(blocks)]
    found = stats.friedmanchisquare(*zip(*rows))
    friedman.append({"rows": rows, "statistic": found.statistic, "probability": found.pvalue})
a = [round(draw.gauss(0, 1), 1) for _ in range(40)]
b = [round(x + draw.gauss(0, 1), 1) for x in a]
path = pathlib.Path(__file__).with_name("statistics.json")
path.write_text(json.dumps({"tails": tails, "wilcoxon": wilcoxon, "friedman": friedman,
                            "spearman": {"a": a, "b": b, "value": stats.spearmanr(a, b).statistic}}) + "\n", encoding="utf-8")
