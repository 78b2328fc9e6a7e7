#!/usr/bin/env python3
"""Talks to an aggregator as its workers, clients and operators do and says where it does not do what docs/wire-protocol.md says.

    run.py --connect tcp://127.0.0.1:7400
    run.py --connect tcp://host:5557 --server-key HEX --worker-key FILE --operator-key FILE --viewer-key FILE --second-worker-key FILE
    run.py --start PATH-OF-ALLOT --model DIRECTORY [--group NAME]

It answers episodes with made-up grades and ends the run, so give it a run of its own; README.md says which. Needs Python 3.11,
pyzmq, protobuf and protoc. Exits with 0 when all cases hold, 1 when one does not, 2 on wrong usage, 77 when something is missing."""

import argparse
import sys
import unittest


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--connect", metavar="ENDPOINT", help="an aggregator that runs")
    place.add_argument("--start", metavar="ALLOT", help="start aggregators of this executable, one for each group of cases")
    parser.add_argument("--group", help="only the cases of this group (groups.py); of an evaluation those of 'evaluation'")
    parser.add_argument("--server-key", metavar="HEX", help="public key of the aggregator, 64 hexadecimal digits")
    for role in ("worker", "operator", "viewer", "second-worker"):
        parser.add_argument(f"--{role}-key", metavar="FILE", help=f"secret key of a {role.replace('-', ' ')} on its allow-list")
    parser.add_argument("--model", help="directory of the run's model, to compute its identity; with --start required")
    parser.add_argument("--adapter", help="directory of the run's adapter, to compute its identity")
    parser.add_argument("--data", help="training questions of the run")
    parser.add_argument("--heldout", help="held-out questions of the run")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second that it takes of one connection (%(default)s)")
    parser.add_argument("--longest-lease", type=float, default=10, metavar="SECONDS",
                        help="skip the cases that wait for leases to run out where leases are longer (%(default)s)")
    parser.add_argument("-k", metavar="PATTERN", action="append", help="only cases whose name matches, as of unittest")
    parser.add_argument("--no-skips", action="store_true", help="a case that is skipped is an error")
    given = parser.parse_args()
    if given.start and not given.model:
        parser.error("--start needs --model")
    if given.server_key and not given.worker_key:
        parser.error("--server-key needs --worker-key")
    return given


def roles_of(given):
    from peer import Keys
    if not given.server_key:
        return {}
    files = {"worker": given.worker_key, "second worker": given.second_worker_key, "operator": given.operator_key,
             "viewer": given.viewer_key}
    return {role: Keys.read(given.server_key, file) for role, file in files.items() if file}


def run_cases(target, names, patterns=None, no_skips=False, verbosity=2, stream=None):
    """Runs the cases of these classes in their order; True when all hold."""
    import groups
    suite = groups.suite_of(target, names, patterns)
    result = unittest.TextTestRunner(verbosity=verbosity, stream=stream).run(suite)
    if no_skips and result.skipped:
        print(f"{len(result.skipped)} cases were skipped", file=sys.stderr)
        return False
    return result.wasSuccessful() and result.testsRun > 0


def main():
    given = arguments()
    try:
        import google.protobuf  # noqa: F401
        import zmq  # noqa: F401
    except ImportError as error:
        print(f"skipped: Python module {error.name} is missing; pip install pyzmq protobuf")
        return 77
    import groups
    from case import Target
    if given.group and given.group not in groups.GROUPS:
        print(f"run.py: there is no group {given.group}; {', '.join(groups.GROUPS)} are there", file=sys.stderr)
        return 2
    if given.start:
        holds = True
        for name in [given.group] if given.group else groups.GROUPS:
            with groups.started(given.start, given.model, name) as target:
                holds = run_cases(target, groups.GROUPS[name].cases, given.k, given.no_skips) and holds
    else:
        target = Target(given.connect, roles_of(given), given.model, given.data, given.heldout, given.rate, given.longest_lease,
                        given.adapter)
        names = groups.GROUPS[given.group].cases if given.group else groups.ALL_CASES
        holds = run_cases(target, names, given.k, given.no_skips)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
