"""The read side: what people and other programs are shown of the store, made from the store alone.

`collect` puts the figures of `infra.db.reading` together as `ReportData`; `page` and `summary` are
pure functions of that. A report can be made at any time, also of a campaign that has only begun.
`export` writes rollouts in the formats of other programs. Changes nothing and has no SQL; may
import `infra` and `mainspring`.
"""
