"""From a run folder to a service: recommendations over HTTP, news added and removed while it runs, and a page."""
