"""One port, one file a kind of tool: how a granted call reaches what runs it. Ignorant of one another."""
