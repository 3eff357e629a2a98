#!/bin/sh
# A night: run what is stale, put better networks in use, remove old versions.
# The signal of an eviction, or of a time limit, goes to this script: it is handed on, so that the
# command ends cleanly, and the next try continues.
command=
is_evicted=
hand_on() {
    is_evicted=yes
    test -z "$command" || kill -TERM "$command"
}
trap hand_on TERM

for step in run promote clean; do
    "${HEP_PIPELINE_PYTHON:-.venv/bin/python}" -m pipeline "$step" --config "$1" &
    command=$!
    # The signal may have come before the number of the process was known.
    test -z "$is_evicted" || hand_on
    wait "$command"
    status=$?
    # A signal ends `wait` before the command ends.
    while kill -0 "$command" 2>/dev/null; do
        wait "$command"
        status=$?
    done
    test "$status" -eq 0 || exit "$status"
done
