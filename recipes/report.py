"""Makes a report of all runs under a folder.

python recipes/report.py runs/ out=report baseline=fresh until=200000
"""

from vmfer_recipes.report.command import main

if __name__ == "__main__":
    main()
