"""What the store promises to many processes: crowds under `kill -9`, forks, threads, pools."""
