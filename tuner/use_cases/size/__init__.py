"""From traffic, SLOs and prices to servers: the rate that one server holds, and what a fleet of them costs."""
