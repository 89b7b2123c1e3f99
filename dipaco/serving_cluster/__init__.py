"""Serving by many processes: replicas of the serving loop on Ray, behind one front end."""
