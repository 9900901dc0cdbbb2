"""Name, store, identify and record a run, and make its steps in one process.

names      names of runs and prepared datasets
source     digests of the code of components
folder     the files of a run, in one place
identity   the ingredients of each step of a run
made       the record of a finished step
plan       a planned run and its plan file
roles      queries and their gallery, where test images have these roles
embed      images to directional distributions
places     place recognition: queries with a database of their own
evaluate   embeddings to metrics
steps      train -> fit -> embed -> evaluate
"""
