# CPython's own test runner says how each case ended. Tests that need a network or much memory are not enabled.
timeout 1800 /usr/bin/python3 -m test --junit-xml "$RESULTS/cases.xml" --timeout 300 "$@"
