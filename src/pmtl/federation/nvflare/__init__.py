"""The transport between organisations: NVFLARE carries the messages of the coordinator.

The server's job runs in a process of its own (`controller.py`). Sites run no NVFLARE jobs: their
main process answers the server's messages (`site.py`), so that a site that was restarted is back at
once, and no site accepts code, configuration or commands.
"""
