"""Long work: a call that is stored, run by whichever process is there, and watched until its end.

accept.py     step 6 of a submission: the job is in the store, and enqueued
deliver.py    the engine is told; the sweep does it where the engine cannot be reached
take.py       whose a job is: taken once, taken over from the dead, or lost with them
run.py        one delivery: take the job, walk its call through the pipeline, put its end down
settle.py     the end of a run: put down until the store takes it, or handed over
live.py       a job in this process's hands: its changes, one at a time
progress.py   reports on their way into the history, a few a second
ending.py     which state a result is, and what is told of a job that ended without one
watch.py      watchers: one reader a process, fanned out in memory
reconcile.py  signs of life, and jobs that nobody looks after
desk.py       what principals ask: get, list, cancel; and what approvals release
unwaited.py   questions of jobs that have ended are taken back
causes.py     why a job is where it is, for the audit log
ledger.py     every change: compare-and-set in the store, then audit and metrics
"""
