"""The ways into a broker: each turns a wire's words into the service's and back."""
