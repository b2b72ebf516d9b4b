"""Process entry points: they connect the services, build the activities and poll their queues."""
