"""HTTP that every route shares: endpoints, request limits, access control, API errors and server-sent events."""
