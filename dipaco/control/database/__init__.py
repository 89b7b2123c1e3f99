"""The databases that hold the facts of runs: a file of SQLite, or a schema on a PostgreSQL server.

contract.py            what the ledger needs of a database, and its named queries
sqlite.py              a file, for the processes of one host
postgresql.py          a server, for workers on any machine (server_connection.py: one connection)
retry.py               waits for a server that cannot be reached
location.py            where a run's facts are, by what the user named; passwords of URLs
write_lock.py          one writer of a file at a time, in order
host_mark.py           the one host that works on a file
queries.sql, schema/   every statement, and the tables
"""
