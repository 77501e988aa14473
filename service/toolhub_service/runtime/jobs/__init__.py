"""Jobs: a call that is stored, run by any process, and watched until its end.

accept.py            step 6 of a submission: the job is in the store, and enqueued
open_job_limit.py    how many jobs may be open
run.py               one delivery: the job is claimed, and its call runs through the pipeline
claims.py            who runs a job; takes over, or ends, a job whose process has died
live_job.py          a job that this process runs
reports.py           its progress on the way into its history
settle.py            the end of a run: its final state is stored, or the job requeued
ledger.py            every change: compare-and-set in the store, then audit and metrics
heartbeat.py         shows other processes that this one lives
reconcile.py         finds jobs of dead processes, lost deliveries, missed decisions, and what has expired
watch.py             watchers: one reader a process, fanned out in memory; get, list and cancel for principals
"""
