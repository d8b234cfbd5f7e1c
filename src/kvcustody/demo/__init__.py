"""The guided demo of the main job, and the small models it serves."""
