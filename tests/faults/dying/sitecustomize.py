"""Imported by every Python process that finds this folder on its path: kills its group at a file-system event.

DIE_IN names the command whose process counts (the last part of argv[0]), DIE_AT the event at which it sends SIGKILL.
"""

import os
import signal
import sys

TOUCHES = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "os.utime", "shutil.rmtree"),
    *("shutil.copyfile", "fcntl.flock", "sqlite3.connect", "subprocess.Popen"),
}
_seen = 0


def _watch(event, arguments):
    global _seen
    if event not in TOUCHES or (event == "open" and str(arguments[0]).endswith((".py", ".pyc", ".so"))):
        return
    if (sys.argv or [""])[0].rpartition("/")[2] != os.environ["DIE_IN"]:
        return
    _seen += 1
    if _seen == int(os.environ["DIE_AT"]):
        os.killpg(0, signal.SIGKILL)


if "DIE_AT" in os.environ:
    sys.addaudithook(_watch)
