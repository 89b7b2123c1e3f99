"""Status, report and other readings of a run, while it trains and afterwards.

status.py, progress.py, blocked.py   how far a run is, and what it waits for
events.py                            what terminals and trackers are told
report.py, curves.py                 results of a finished run, and its learning curves
routing_notes.py                     sentences of the report on how documents are routed
inspection.py                        shards, and how each module moved
sizes.py                             bytes of a run
releases.py, export.py               one release, its texts, and one path for other programs
evaluate_texts.py                    perplexity of any text
"""
