"""Jobs: a call that is stored, run by any process, and watched until its end.

accept.py     step 6 of a submission: the job is in the store, and enqueued
run.py        one delivery: claim the job, run its call through the pipeline; heartbeats
settle.py     the end of a run: progress reports, final state, and the record of it persisted or the job requeued
ledger.py     every change: compare-and-set in the store, then audit and metrics; a job that this process runs
watch.py      watchers: one reader a process, fanned out in memory; get, list and cancel for principals
reconcile.py  dead runners, lost deliveries, decisions about approvals, and what has expired
"""
