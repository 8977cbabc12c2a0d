"""From run directories to progress tables and reports.

``runs`` reads runs, ``methods`` names methods, ``baselines`` finds what they are compared with,
``statistics`` and ``inference`` estimate and test, ``comparisons`` and ``study`` combine all this,
``tables``, ``pictures`` and ``page`` show it, and ``progress`` reports on unfinished runs.
"""
