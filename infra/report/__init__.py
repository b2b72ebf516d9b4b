"""The report of a campaign: one HTML file and one JSON summary, made from the store alone.

`collect` reads Postgres into `ReportData`; `page` and `summary` are pure functions of that. A
report can be made at any time, also of a campaign that has only begun.
"""
