"""One container host: its sandboxes, capacity, warm sandboxes, beat, reaper and grader.

No activities here; the activities of `activities.sandbox` and `activities.grading` are built from
these parts, and `workers.sandbox` runs both. May import `infra` and `mainspring`.
"""
