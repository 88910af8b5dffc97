"""MLflow's follower ends before its imports, half of the time of a short study, as after one that it has logged."""

import os
import sys

if "dashboards.mlflow.follower" in sys.orig_argv:
    os._exit(0)
