"""Steps without process starts: a process of the workflow that has imported everything forks a child per command.

Half of a short step is `import torch`. The console script (`client`) hands its command to a server (`server`) that the
first command of a workflow starts and that ends with the workflow; the child (`job`) works with the command's own
folder, environment, files and limits, and ends as the command. Whatever is not as it should be (no server, other code,
other settings that count when a process starts, a server that dies) makes the client run the command itself.

The workflow names the folder of the sockets in the environment (`starting.FOLDER`); without it nothing changes.
"""
