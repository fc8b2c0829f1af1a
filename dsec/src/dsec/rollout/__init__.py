"""Rollouts: an agent does each task of an environment in a sandbox of its own, and is judged there.

A client of the platform with no privileges of its own: all it does goes through the public SDK. One *run* takes an
environment, an agent and an image. For each task, many at a time and bounded, it makes a sandbox, puts the task's files
there, lets the agent act, runs the grading command, and stops the sandbox, whatever happened before. What went wrong is
kept apart from what was wrong: an answer that fails its tests is a result, a sandbox that cannot be made is an error,
and only an error that says a retry is safe is tried again.

- `agents`    the contract of an agent and those that ship: `oracle`, `broken`, `command:PATH`
- `runner`    one run; `stages` one rollout
- `outcome`   what came of it: values and arithmetic
- `report`    report.json and report.html, written and read
- `page`, `charts`  the page and its pictures
- `progress`  what a person sees meanwhile
"""
