"""From run directories to progress tables and reports.

``runs`` reads, ``methods`` names and pairs, ``statistics`` estimates, ``study`` puts these
together, ``tables``, ``pictures`` and ``page`` show it; ``progress`` looks at work
in progress.
"""
