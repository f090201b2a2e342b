"""Compare runs of the same training on several numbers of processes (report/scaling.py).

trainyard scaling RUN...            a table, and scaling.html with the plots
trainyard scaling RUN... --json     the same numbers as JSON
"""

from trainyard.core.exits import guarded
from trainyard.report import scaling

if __name__ == "__main__":
    guarded(scaling.main)
