"""Publishers and subscriptions of a super stream."""
