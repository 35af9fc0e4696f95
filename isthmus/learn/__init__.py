"""What happens inside one client: tasks, local training, evaluation."""
