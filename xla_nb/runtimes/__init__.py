"""What a rank joins. Each module here is one runtime, behind the same two functions:

`prepare(order)` runs in the job before anything is forked and says what will come;
`start(...)` starts the ranks and returns when all of them have ended.
"""
