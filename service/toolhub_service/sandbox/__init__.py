"""What programs are started by, and what holds them: processes, walls of the kernel, levels of confinement."""
