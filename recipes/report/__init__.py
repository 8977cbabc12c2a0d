"""From run directories to reports, and to the progress of unfinished runs.

``runs`` reads runs, ``methods`` names them and finds what they are compared with, ``inference``
estimates and tests, ``study`` combines all this, ``tables``, ``figures`` and ``page`` show it,
``document`` writes it, ``command`` is the program.
"""
