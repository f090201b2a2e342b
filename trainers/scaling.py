"""Compare runs of the same training on several numbers of processes (report/scaling.py).

python -m trainers.scaling RUN...            a table, and scaling.html with the plots
python -m trainers.scaling RUN... --json     the same numbers as JSON
"""

from trainers.exits import guarded
from trainers.report import scaling

if __name__ == "__main__":
    guarded(scaling.main)
