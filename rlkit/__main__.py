"""`python -m rlkit`."""

import os
import sys

from rlkit.cli import main

if __name__ == "__main__":
    code = main()
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        # process groups that DeepSpeed 0.19.8 keeps can abort Python's end when all is done
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
