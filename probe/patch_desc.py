# replaces _Descriptor.move by a form chosen by AOTC_DESC: chain (default), first, mixed
import sys
p='aotc/backend/nvvm_wgmma.py'
s=open(p).read()
s=s.replace('''            self.register, self.offset = at, offset
        return self.register
''','''            if os.environ.get("AOTC_DESC", "chain") == "first" or (
                os.environ.get("AOTC_DESC") == "mixed" and self.name == "b"
            ) or (os.environ.get("AOTC_DESC") == "mixed2" and self.name == "a"):
                return at
            self.register, self.offset = at, offset
        return self.register
''')
s=s.replace("from dataclasses import","import os\nfrom dataclasses import",1)
open(p,'w').write(s)
