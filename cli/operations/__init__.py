"""Operations of commands, without the command line: start, resume, watch, measure, prepare, repair.

Each module is one operation that a program may call as well; output goes to a rich console that the
caller gives or to `mainspring.errors`' messages. Imports everything below it; imported by `cli`.
"""
