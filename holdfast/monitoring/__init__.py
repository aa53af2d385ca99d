"""What Prometheus and Grafana are told of a job: metrics, alerts and dashboards, as data. Pure."""
