#!/bin/sh
# Runs one part of the kit on this machine and writes what it finds into a folder:
#
#     ./run.sh right|fast|why OUT [ITEM...]
#
# All items of the part are run, or those that are named, such as "several ranks".
# CARD_SECONDS is the time of the part (540), CARD_SMALL=1 takes small sizes, for a rehearsal.
here=$(CDPATH= cd "$(dirname "$0")" && pwd) || exit 2
exec python3 "$here/run.py" "$@"
