"""Job queues: an engine delivers each job to a process that runs it, at least once. The store has the jobs themselves.

An optional engine is imported only when it is chosen, because its libraries are installed only where it is used.
"""
