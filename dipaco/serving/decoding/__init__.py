"""From a request to its tokens on one device: the loop, its queue, its cache, its programs."""
