"""A run: its name, folder, identity and record, and its steps in one process.

names      what runs and prepared datasets are called
source     digests of the code that components are made of
folder     the files of a run, in one place
identity   what each step of a run is made from
made       the record of a finished step
plan       a planned run and its plan file
roles      queries and their gallery, where test images have these roles
embed      images to directional distributions
places     place recognition: queries with a database of their own
evaluate   embeddings to metrics
steps      train -> fit -> embed -> evaluate
"""
