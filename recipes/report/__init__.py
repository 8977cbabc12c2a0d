"""From run directories to reports, and to the progress of unfinished runs.

``runs`` reads runs, ``methods`` names them, ``baselines`` finds what they are compared with,
``inference`` estimates and tests, ``study`` combines all this into ``results``, ``tables``,
``figures`` and ``page`` show them, ``document`` writes them, ``command`` is the program.
"""
