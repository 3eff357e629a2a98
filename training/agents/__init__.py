"""Training on Spark alone: long-lived agents in executors, exchange cycles as jobs, the joint model in the driver."""
