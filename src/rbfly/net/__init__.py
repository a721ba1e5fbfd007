"""asyncio below the API: connections, which node to connect to, when to try again."""
