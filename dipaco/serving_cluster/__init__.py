"""Serving by many processes: replicas of the serving loop on a Ray cluster, and the door before them."""
