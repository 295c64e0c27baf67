# What masks let through is valid under its schema: 250 random schemas here; the campaign runs 10,000.
set -euo pipefail
python3 tests/campaigns/schemas.py --qeng "$QENG" --count 250 --walks 2 --seed 7
