"""Many runs from one plan.

In come suites (methods x protocols x seeds x settings); out goes a plan, a line for every step, each of which is a
`bench` command that can be repeated and resumed. A pool of processes or Slurm carries it out. What is done is read off
the files that steps leave behind, never off who started what.
"""
